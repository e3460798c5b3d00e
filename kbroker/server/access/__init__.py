"""Authorization: ACL operations and resources, and the checks that handlers call. Never stores ACLs."""
