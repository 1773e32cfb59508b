INSERT INTO runs (added_at, content_hash, record_version, format, model, device, document)
VALUES ('2026-01-01T00:00:00.000000Z', 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 1, 'csv', 'Qwen/Qwen3-8B', 'h100-sxm-80', '{"format":"csv","source":{"file":"a.csv","file_sha256":"ab"},"content_hash":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc","setup":{"model":"Qwen/Qwen3-8B","device":"h100-sxm-80"},"serving":[{"ttft":{"mean":0.30000000000000004},"completed":12}]}');
INSERT INTO calibrations (name, version, created_at, document)
VALUES ('mine', 1, '2026-01-01T00:00:00.000000Z', '{"calibration":{}}');
INSERT INTO calibration_runs (calibration, run) VALUES (1, 1);
INSERT INTO plans (id, created_at, calibration, calibration_version, horizon, catalogue_version, schema_version, scenario, answer)
VALUES ('a', '2026-01-01T00:00:00.000000Z', 'chapter8', '1', 0, 'c', '1', '{"z":1,"a":[1.0,null,"\u00e9"]}', '{"b":1}')
