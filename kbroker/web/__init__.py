"""What monitors ask a broker for over HTTP: metrics, health, readiness. Reads the broker's parts, never changes one."""
