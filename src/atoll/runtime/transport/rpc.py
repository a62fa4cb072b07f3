"""Connections over gRPC: one call for each connection, whose two streams are the pipe. For networks whose proxies and load balancers need HTTP/2."""

from __future__ import annotations

import asyncio
from typing import Any

from atoll.core.errors import IdentityError
from atoll.runtime.identity import peer_of

from .accepted import remote_of
from .addresses import join_address, split
from .base import LARGEST, Accept, Admission, Listener, Pipe, PipeClosed, Transport
from .calls import DialledPipe, GrpcPipe, aio, grpc, stay
from .connecting import listening
from .handshakes import Handshakes
from .own import UNWELCOME, own
from .proof import CERTIFICATE, draw_question, proof_of, proven
from .refusals import reason, refusal
from .refused import RefusalLog

__all__ = ["OPTIONS", "GrpcTransport"]

_METHOD = "/atoll.Pipe/Run"
_WAIT = 15.0  # seconds

OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.optimization_target", "throughput"),
]
"""gRPC options of both ends."""
PATIENCE: list[tuple[str, int]] = [
    ("grpc.server_handshake_timeout_ms", 15_000),
    ("grpc.max_connection_idle_ms", 60_000),
]
"""gRPC options of the end that listens: how long a visitor may take to present a certificate, and then to call."""


class _Listening(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, admission: Admission, accept: Accept) -> None:
        self.address = ""
        self.server: Any = None
        self._me = peer_of(admission.credentials.certificate)
        self._admission = admission
        self._accept = accept
        self._pipes: set[GrpcPipe] = set()
        self._refused = RefusalLog(admission.on_refused)
        self.handshakes = Handshakes(self._refused)

    def service(self, details: Any) -> Any:
        """Return the handler of a method; gRPC calls this."""
        return grpc.stream_stream_rpc_method_handler(self._run) if details.method == _METHOD else None

    async def _run(self, requests: Any, context: Any) -> None:
        del requests  # read from the context
        self.handshakes.note_call(context.peer())
        certificate = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            peer = self._admission.judge_certificate(certificate, self._me)
            proof = proof_of(self._admission.credentials, peer, dict(context.invocation_metadata() or ()))
        except IdentityError as error:
            self.handshakes.count_failure(context.peer())
            host, port = remote_of(context.peer()) or (context.peer(), 0)
            self._refused.connection(host, port, str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason(error))
        await context.send_initial_metadata(proof)
        pipe = GrpcPipe(peer, context)
        pipe.address = join_address(*(remote_of(context.peer()) or (context.peer(), 0)))
        self._pipes.add(pipe)
        try:
            await self._accept(pipe)
            await pipe.gone.wait()
        finally:
            pipe.gone.set()
            self._pipes.discard(pipe)

    async def close(self) -> None:
        self.handshakes.close()
        self._refused.close()
        for pipe in list(self._pipes):
            await pipe.close()
        await self.server.stop(0.5)


class GrpcTransport(Transport):
    """gRPC over TLS 1.3 with certificates at both ends."""

    name = "grpc"

    async def _listen(self, address: str, admission: Admission, accept: Accept) -> Listener:
        stay()
        host, asked_for = split(address)
        mine = admission.credentials
        made = _Listening(admission, accept)
        server = aio.server(handlers=(made,), options=[*OPTIONS, *PATIENCE, ("grpc.so_reuseport", 0)])
        made.server = server
        config = grpc.ssl_server_certificate_configuration([(mine.key, mine.certificate)], root_certificates=mine.ca)
        # gRPC calls this at each connection and is told that nothing has changed; the call itself is what matters.
        proof = grpc.dynamic_ssl_server_credentials(
            config, made.handshakes.note_connection, require_client_authentication=True
        )
        try:
            port = server.add_secure_port(address, proof)
        except RuntimeError as error:
            await server.stop(None)
            raise await _why_not(host, asked_for) from error
        made.handshakes.at(port, host)
        await server.start()
        made.address = join_address(host, port)
        return made

    async def _dial(self, address: str, admission: Admission, server_name: str | None) -> Pipe:
        stay()
        mine = admission.credentials
        me = own(mine)
        name = server_name or split(address)[0]
        secured = grpc.ssl_channel_credentials(mine.ca, mine.key, mine.certificate)
        named = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        channel = aio.secure_channel(address, secured, options=[*OPTIONS, *named])
        number, question = draw_question()
        call = channel.stream_stream(_METHOD)(metadata=question)
        try:
            async with asyncio.timeout(_WAIT):
                answer = dict(await call.initial_metadata() or ())
                if CERTIFICATE not in answer:
                    raise await _failure(address, call)
            return DialledPipe(proven(admission, me, number, answer), call, channel)
        except BaseException:
            call.cancel()
            await channel.close()
            raise


async def _why_not(host: str, port: int) -> OSError:
    """Return why an address cannot be listened at: gRPC does not say, the system does."""
    try:
        sockets = await listening(host, port)
    except OSError as error:
        return error
    for sock in sockets:
        sock.close()
    return OSError("gRPC cannot, and the system does not say why")


async def _failure(address: str, call: Any) -> Exception:
    """Return why a call failed: a refusal, or nothing listens there."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return refusal(address, details)
    if "SSL_ERROR" not in details and "Verification" not in details:
        more = f"; {UNWELCOME}" if "ocket closed" in details or "reset" in details else ""
        return PipeClosed(f"no connection to {address}: {details}{more}")
    return IdentityError(
        f"no connection to {address}: {details}",
        where="connecting",
        remedy="check that both ends use kits of the same project that have not expired, and the server's name",
    )
