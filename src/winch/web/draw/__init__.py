"""Pictures made on the server: icons, charts, timelines, graphs."""
