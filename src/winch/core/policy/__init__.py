"""What users declare: retries, limits, schedules, uniqueness, retention."""
