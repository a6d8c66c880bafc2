"""Commands about what runs: queues, limits, schedules, workers."""
