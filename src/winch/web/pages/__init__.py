"""The dashboard: pages made on the server, readable without JavaScript, each with a JSON twin."""
