"""JAAS configs, in the syntax of Java's StreamTokenizer."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import UserError
from kbroker.security.client_login import login_of_jaas, login_of_user
from kbroker.security.jaas import PLAIN_LOGIN_MODULE, SCRAM_LOGIN_MODULE, parse_jaas, plain_users, quote_jaas


def options_of(text: str) -> dict[str, str]:
    return dict(parse_jaas(f"{PLAIN_LOGIN_MODULE} required {text};", source="the test").options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ('username="a" password="b"', {"username": "a", "password": "b"}),
        ("username=a\n password='b \"c'", {"username": "a", "password": 'b "c'}),
        (r'password="a\"b\\c\td\101"', {"password": 'a"b\\c\tdA'}),
        ('password="a;b=c // no comment"', {"password": "a;b=c // no comment"}),
        ('user_a-b.c="x" user_d$e="y"', {"user_a-b.c": "x", "user_d$e": "y"}),
        ('"user_a b"="x" \'user_c"\'="y"', {"user_a b": "x", 'user_c"': "y"}),
        ('a="1" // a comment\n/* another; */ b="2"', {"a": "1", "b": "2"}),
        ("a = true b=x1", {"a": "true", "b": "x1"}),
        ('a="1" a="2"', {"a": "2"}),
        ('user_müller="ä"', {"user_müller": "ä"}),
    ],
)
def test_options_are_words_or_quoted(text: str, options: dict[str, str]) -> None:
    assert options_of(text) == options


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no login module"),
        ("a.B", "Login module control flag not specified"),
        ("a.B needed;", "Invalid login module control flag"),
        ("a.B required", "not terminated by semi-colon"),
        ("a.B required user=s3cret", "not terminated by semi-colon"),
        ("a.B required password=12345;", "Value not specified for key 'password'"),
        ("a.B required password=;", "Value not specified for key 'password'"),
        ("a.B required s3cret 12345;", "Value not specified for key 's3cret'"),
        ("a.B required; a.C required;", "2 login modules"),
        ("= required;", "Login module not specified"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "is not allowed"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "is not allowed"),
    ],
)
def test_a_wrong_config_is_refused_without_its_values(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as failure:
        parse_jaas(text, source="sasl.jaas.config")
    assert str(failure.value).startswith("sasl.jaas.config: ")
    assert "12345" not in str(failure.value)


def test_the_flag_may_have_any_case() -> None:
    assert parse_jaas("a.B Required;", source="").class_name == "a.B"


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.text(), max_size=4))
def test_quoted_names_and_passwords_come_back(users: dict[str, str]) -> None:
    """Attack: quotes, backslashes and semicolons in names and passwords."""
    text = " ".join(f"{quote_jaas(f'user_{name}')}={quote_jaas(password)}" for name, password in users.items())
    module = parse_jaas(f"{PLAIN_LOGIN_MODULE} required {text};", source="")
    assert plain_users(module) == users


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(UserError):
        parse_jaas(text, source="")


def test_only_options_with_the_prefix_are_users() -> None:
    module = parse_jaas(f'{PLAIN_LOGIN_MODULE} required username="b" password="s" user_a="x" user_="y";', source="")
    assert plain_users(module) == {"a": "x", "": "y"}
    assert "x" not in repr(module)


def test_a_client_logs_in_with_username_and_password_of_its_config() -> None:
    login = login_of_jaas("PLAIN", f'{PLAIN_LOGIN_MODULE} required username="a" password="b";', source="")
    assert login.start().first_token() == b"\0a\0b"
    login = login_of_jaas("SCRAM-SHA-512", f'{SCRAM_LOGIN_MODULE} required username="a" password="b";', source="")
    assert login.start().first_token().startswith(b"n,,n=a,r=")


@pytest.mark.parametrize(
    ("mechanism", "text", "problem"),
    [
        ("PLAIN", f"{PLAIN_LOGIN_MODULE} required;", "username and password are needed"),
        ("PLAIN", f'{SCRAM_LOGIN_MODULE} required username="a" password="b";', "needs the login module"),
        ("GSSAPI", "com.sun.security.auth.module.Krb5LoginModule required;", "kbroker has no GSSAPI"),
        ("DIGEST-MD5", "a.B required;", "is not supported; supported: PLAIN, SCRAM-SHA-256"),
    ],
)
def test_a_login_that_cannot_work_is_refused(mechanism: str, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        login_of_jaas(mechanism, text, source="source")


def test_a_name_that_the_mechanism_cannot_send_is_refused() -> None:
    with pytest.raises(UserError, match="NUL"):
        login_of_user("PLAIN", user="a\0b", password="c", source="source")
    with pytest.raises(UserError, match="ASCII"):
        login_of_user("SCRAM-SHA-256", user="müller", password="c", source="source")
