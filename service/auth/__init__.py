"""Authentication: API keys, their tenants, and what each of them may use."""
