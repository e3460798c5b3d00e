"""ssl.principal.mapping.rules: the examples of Kafka's documentation and of its SslPrincipalMapperTest."""

from __future__ import annotations

import pytest

from kbroker.errors import UserError
from kbroker.security.principal_mapping import map_name, parse_rules

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (RULES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("DEFAULT", "CN=a", "CN=a"),
        ("", "CN=a", "CN=a"),
        (r"RULE:^CN=(.*)$/$1/", "O=a", None),
        (r"RULE:^CN=(.*)$/$1/", "CN=a,O=b", "a,O=b"),
        (r"RULE:CN=a/x/", "CN=ab", None),
        (r"RULE:^CN=(\w+)$/$2-$1/", "CN=a", "$2-a"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ", r"Tkac\, Adam"),
        (r"RULE:^CN=([^,\/]+)\/(.*)$/$1\/x/L", "CN=A/b", "a/x"),
        (r"RULE:^CN=(?<user>\w+).*$/${user}/", "CN=alice,O=b", "alice"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_applies(rules: str, name: str, user: str | None) -> None:
    assert map_name(parse_rules(rules), name) == user


@pytest.mark.parametrize(
    "rules", ["default", "RULE:", "RULE:a", "RULE:a/b", "RULE:^CN=(.*$/$1/", "DEFAULT,x", "RULE:a/b/l", "RULE:(/x/"]
)
def test_an_invalid_rule_is_refused_in_one_line(rules: str) -> None:
    with pytest.raises(UserError, match=r"^ssl\.principal\.mapping\.rules has an invalid [^\n]*$"):
        parse_rules(rules)
