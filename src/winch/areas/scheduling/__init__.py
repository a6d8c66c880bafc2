"""What `app.schedules` is made of: definitions, and jobs for times that have passed."""
