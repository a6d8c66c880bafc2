"""The handlers of `/api/v1`, by what they are about; each module ends with its routes."""
