"""What users run beside their own program to speak with the service."""
