"""Access control: routes, hosts and origins."""
