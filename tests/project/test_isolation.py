"""The guards that every test runs under hold."""

from __future__ import annotations

import os
import socket
import warnings

import pytest


def test_a_connection_to_another_machine_is_refused() -> None:
    with socket.socket() as one, pytest.raises(RuntimeError, match=r"tests run without a network; \('192.0.2.1', 80\)"):
        one.connect(("192.0.2.1", 80))  # TEST-NET-1, RFC 5737: nobody's address


def test_a_name_of_another_machine_is_not_looked_up() -> None:
    with pytest.raises(RuntimeError, match=r"example\.invalid was asked for"):
        socket.create_connection(("example.invalid", 80))


def test_a_connection_to_this_machine_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        client.sendall(b"ahoy")
        assert other.recv(4) == b"ahoy"
        other.close()


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning, match="look out"):
        warnings.warn("look out", stacklevel=1)


def test_libraries_are_told_to_keep_to_one_thread() -> None:
    assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == "1"
