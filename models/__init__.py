"""What would happen: memory, step time, service and quality of one serving configuration. Pure: no search, storage, web, clock."""
