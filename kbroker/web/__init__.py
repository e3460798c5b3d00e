"""HTTP endpoints for monitoring: metrics, health, readiness. Reads the state of the broker, never changes it."""
