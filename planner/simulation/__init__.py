"""One configuration under its traffic: the run, the knee of its rate, and the step that a gap allows."""
