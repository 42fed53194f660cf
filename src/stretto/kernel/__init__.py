"""What everything stands on: errors, the registry of components, clocks, the event log, waits, metrics, child
processes."""
