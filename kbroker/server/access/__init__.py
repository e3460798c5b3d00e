"""Authorization: the authorizer, and the checks that handlers call. ACL rules are in `kbroker.security.acls`."""
