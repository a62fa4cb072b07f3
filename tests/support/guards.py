"""Guards of the threat model, each switched off once: the test that a promise names fails without its guard.

    python tests/support/guards.py               # all of them, in a copy of the repository: about fifteen minutes
    python tests/support/guards.py consent       # those of a part, or that stop something with this word

A guard is a line of the source. Its row says how it is switched off, and the case of a test that must fail then. `test_guards.py` checks that
each row still fits the source and the tests, so that the list does not outlive them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["GUARDS", "Guard"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds after which a test hangs."""
COPIED = (
    "src",
    "papers",
    "tests",
    "conftest.py",
    "docs",
    "examples",
    "benchmarks",
    "packaging",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "mkdocs.yml",
)


class Guard(NamedTuple):
    """A line that keeps a promise.

    Attributes:
        part: of the threat model.
        stops: what it stops.
        file: below ``src/atoll/``.
        line: its text, which the file has once.
        off: the text in its place that switches it off.
        test: a test, or one case of it, below ``tests/``.
    """

    part: str
    stops: str
    file: str
    line: str
    off: str
    test: str


WORDS = "runtime/security/test_words.py"
EXPECTED = "runtime/network/test_expected.py"
HOSTILE = "runtime/security/test_hostile.py"
PEOPLE = "runtime/security/test_people.py"
CONSENT = "runtime/security/test_consent.py"
LOTS = "secure/test_lot.py"
DOCTOR = "runtime/provision/test_doctor.py"
OPERATORS = "runtime/security/test_operators.py"
CROWDS = "runtime/transport/test_crowds.py"
HOSTILE_JOBS = "runtime/security/test_hostile_jobs.py"
SANDBOX = "runtime/confinement/test_confined_jobs.py"
KEYS = "runtime/security/test_keys_out_of_reach.py"

FAILS = f"{HOSTILE}::test_a_job_that_fails_names_the_site"
DROPS = f"{HOSTILE}::test_a_job_that_goes_on_reaches_what_it_would_have_reached_without_the_site"
OWN_CODE = f"{WORDS}::test_an_error_in_a_jobs_own_code_is_said_by_its_kind"
TABLES = f"{WORDS}::test_what_is_wrong_with_a_table_is_said_without_its_values"
REFUSED = f"{EXPECTED}::test_what_is_not_expected_is_refused_by_name"
OUTSIDE = f"{HOSTILE}::test_what_stands_far_outside_is_named_and_by_one_setting_rejected"
ALL_TOLD = f"{WORDS}::test_the_sites_person_sees_the_names_of_classes_before_anybody_else"
PRISON = f"{SANDBOX}::test_a_job_sees_its_data_its_scratch_and_nothing_else[tcp]"

GUARDS: tuple[Guard, ...] = (
    # 1. nothing of the data leaves a site in words
    Guard("words", "a marked value in an error", "runtime/worker/at_site.py", "None if text is None else redacted(text)", "text", f"{OWN_CODE}[marked-sum]"),
    Guard("words", "the text of an error of a job's own code", "runtime/worker/at_site.py", 'what = f"{type(error).__name__}: {private(text)}" if text else type(error).__name__\n    return TaskError', 'what = f"{type(error).__name__}: {text}" if text else type(error).__name__\n    return TaskError', f"{WORDS}::test_an_error_is_written_to_the_log_once"),
    Guard("words", "what an error repeats of its cause", "runtime/worker/at_site.py", "            text = _outside(text, part)", "            pass", f"{OWN_CODE}[wrapped-ask]"),
    Guard("words", "the text of an error in a traceback", "runtime/worker/at_site.py", 'lines.append(f"{type(found).__name__}: {private(text)}" if text else type(found).__name__)', 'lines.append(f"{type(found).__name__}: {text}" if text else type(found).__name__)', f"{WORDS}::test_a_traceback_holds_no_text_of_an_error"),
    Guard("words", "a marked value in a line of a job's log", "runtime/site/attempt.py", "told = [redacted(line) for line in lines]", "told = list(lines)", f"{WORDS}::test_a_line_of_a_jobs_log_leaves_without_its_values"),
    Guard("words", "a cell of a numeric column", "data/readers/_words.py", "but {private(values[row])} at row", "but {values[row]} at row", f"{TABLES}[a word in one of two targets]"),
    Guard("words", "a word among numbers", "runtime/worker/sitedata.py", "holds numbers, and {private(word)} at row", "holds numbers, and {word} at row", f"{TABLES}[a word among numbers]"),
    Guard("words", "a value outside the categories", "data/readers/table.py", 'f"{private(values[row])} at row {row + offset} is not a category', 'f"{values[row]} at row {row + offset} is not a category', f"{TABLES}[outside the categories]"),
    Guard("words", "a label out of range", "data/_checks.py", "label {private(int(codes[tuple(place)]))} at row", "label {int(codes[tuple(place)])} at row", f"{TABLES}[a class out of range]"),
    Guard("words", "names as classes, told by the job", "runtime/worker/sitedata.py", "require_few(len(made.about.labels), str(target), path.name)", "pass", f"{TABLES}[too many classes]"),
    Guard("words", "names as classes, told before the first connection", "runtime/worker/headers.py", "    require_few(len(names), target, f\"data of site {name!r}\")", "    pass", ALL_TOLD),
    # 2. a reply is judged by what was asked
    Guard("replies", "another shape", "runtime/network/validation.py", "            require_fit(known, {name: _whole(total, known[name])})", "            pass", f"{REFUSED}[another shape]"),
    Guard("replies", "a reply without what was asked for", "runtime/network/validation.py", "        if name not in totals:", "        if False:", f"{REFUSED}[nothing]"),
    Guard("replies", "a metric that nobody registered", "runtime/network/validation.py", "if form.metrics is not None and name not in form.metrics:", "if False:", f"{REFUSED}[a metric that nobody registered]"),
    Guard("replies", "a metric of many numbers", "runtime/network/validation.py", "or np.shape(part) != ():", ":", f"{REFUSED}[a metric of many numbers]"),
    Guard("replies", "a report that is none", "runtime/network/validation.py", 'elif total.kind != "parts" or total.role != "report":', "elif False:", f"{REFUSED}[a report that is none]"),
    Guard("replies", "800 MB in place of two numbers", "runtime/network/validation.py", "max_bytes=min(known.max_bytes, size),", "max_bytes=known.max_bytes,", f"{EXPECTED}::test_a_reply_of_another_size_is_refused_before_it_is_received"),
    Guard("replies", "trees of very many leaves", "runtime/network/validation.py", "max_leaves=min(known.max_leaves, 4 * leaves + _LEAVES),", "max_leaves=known.max_leaves,", f"{EXPECTED}::test_a_reply_of_another_size_is_refused_before_it_is_received"),
    Guard("replies", "a large message, before it is received", "runtime/network/validation.py", "QUIET = Limits(max_bytes=32 << 20,", "QUIET = Limits(max_bytes=1 << 40,", f"{FAILS}[800 MB]"),
    Guard("replies", "many leaves, before they are received", "runtime/network/validation.py", "max_text_bytes=32 << 20, max_leaves=200_000)", "max_text_bytes=32 << 20)", f"{FAILS}[many leaves]"),
    Guard("replies", "a flood of replies", "runtime/network/validation.py", "if self._unasked > self._asked + _MOST_UNASKED:", "if False:", f"{FAILS}[a flood of replies]"),
    Guard("replies", "a flood of signs of life", "runtime/network/validation.py", "        if self._pulses < 0:", "        if False:", f"{FAILS}[a flood of signs of life]"),
    Guard("replies", "a flood of privacy events", "runtime/network/validation.py", "or len(events) > _MOST_EVENTS:", ":", f"{FAILS}[a flood of events]"),
    Guard("replies", "what another's party has spent", "runtime/network/validation.py", "        if text_in(told, \"party\") != party:", "        if False:", f"{FAILS}[another's privacy]"),
    Guard("replies", "a sum in two names", "runtime/network/validation.py", "or senders[:2].tolist() not in ([], [position]):", ":", f"{FAILS}[two senders]"),
    Guard("replies", "a rejection in another's name", "runtime/network/validation.py", "    if others or not all(", "    if not all(", f"{FAILS}[another is rejected]"),
    Guard("replies", "a reply that counts five times", "runtime/network/validation.py", "or type(total.n) is not int or total.n != 1:", ":", f"{FAILS}[counted five times]"),
    Guard("replies", "NaN", "runtime/network/validation.py", "        if number and not finite(leaf):", "        if False:", f"{FAILS}[NaN]"),
    Guard("replies", "a weight below zero", "runtime/network/validation.py", 'if weight < 0 or (kind in ("sum", "vote") and weight != 1):', 'if kind in ("sum", "vote") and weight != 1:', f"{FAILS}[a weight below zero]"),
    Guard("replies", "the first reply as the form of the others", "runtime/network/validation.py", "    form, most = votes.most_common(1)[0]", "    form, most = next(iter(votes)), LEAST", f"{EXPECTED}::test_without_a_declaration_the_form_is_what_most_sent_and_not_what_came_first"),
    # 3. keys are out of a job's reach
    Guard("keys", "memory that a job's process reads", "runtime/provision/keys.py", "ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0", "True", f"{KEYS}::test_a_closed_process_leaves_no_core_and_nobody_reads_its_memory"),
    Guard("keys", "core files", "runtime/provision/keys.py", "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "pass", f"{KEYS}::test_a_closed_process_leaves_no_core_and_nobody_reads_its_memory"),
    Guard("keys", "a front that opens a kit and stays readable", "cli/asking.py", "    close_memory()", "    pass", f"{KEYS}::test_a_job_finds_neither_passphrase_nor_key_at_its_front[tcp]"),
    Guard("keys", "the passphrase in the first environment", "runtime/provision/keys.py", "            ctypes.memset(place, 0, len(ctypes.string_at(place)))", "            pass", f"{KEYS}::test_a_variable_is_gone_from_the_process_and_from_its_first_environment"),
    Guard("keys", "the passphrase in the environment", "runtime/provision/keys.py", "        forget_variable(variable)", "        pass", f"{KEYS}::test_a_passphrase_is_taken_from_the_environment_once"),
    Guard("keys", "the front's environment in a job's", "runtime/daemon/processes.py", "if name in _NAMES or name.startswith(_BEGIN)}", "}", "runtime/daemon/test_processes.py::test_a_process_talks_over_its_socket_and_its_lines_are_passed_on"),
    # 4. a job does not own its host
    Guard("host", "the network", "runtime/confinement/sandbox.py", '*([] if network else ["--unshare-net"]), ', "", PRISON),
    Guard("host", "other processes", "runtime/confinement/sandbox.py", '"--unshare-pid", ', "", PRISON),
    Guard("host", "data that a job changes", "runtime/confinement/sandbox.py", 'yield from ("--ro-bind-try", path, path)', 'yield from ("--bind-try", path, path)', PRISON),
    Guard("host", "rights of root", "runtime/confinement/sandbox.py", '"--cap-drop", "ALL",', "", "runtime/confinement/test_confining.py::test_the_command_line_shows_what_the_walls_name_and_hides_the_rest"),
    Guard("host", "the kit where the data's folder shows it", "runtime/confinement/sandbox.py", '*(word for path in hidden for word in ("--tmpfs", str(path))),', "", "runtime/confinement/test_confining.py::test_the_command_line_shows_what_the_walls_name_and_hides_the_rest"),
    Guard("host", "processes, memory, files without end", "runtime/daemon/child.py", "        if most > 0 and (hard", "        if False and (hard", f"{SANDBOX}::test_a_job_takes_no_more_than_its_share[tcp]"),
    Guard("host", "what a job writes in total", "runtime/daemon/launch.py", "            await made.watch((code / \"scratch\", place.state), confinement.scratch, 0 if started.group else limits.memory)", "            pass", "runtime/confinement/test_scratch.py::test_a_job_that_writes_without_end_is_ended_with_the_reason[tcp-never]"),
    Guard("host", "system calls that no job needs", "runtime/daemon/child.py", "        shut_system_calls()", "        pass", f"{HOSTILE_JOBS}::test_a_job_reaches_no_keyring_no_other_process_and_no_other_socket[always]"),
    Guard("host", "the entries of other machines", "runtime/confinement/walls.py", "(_EQUAL, 1, 0, entry), ", "(_EQUAL, 1, 1, entry), ", "runtime/confinement/test_system_calls.py::test_the_other_entries_of_a_machine_are_shut"),
    Guard("host", "sockets that are neither IP nor Unix", "runtime/confinement/walls.py", "(_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)", "(_RETURN, 0, 0, _ALLOW)", "runtime/confinement/test_system_calls.py::test_what_no_job_needs_is_shut_and_the_rest_is_open[x86_64]"),
    Guard("host", "a record that becomes shorter", "core/persistence/named_results.py", "if not _extends(", "if False and not _extends(", f"{HOSTILE_JOBS}::test_a_job_that_plants_links_pipes_and_lines_harms_neither_its_site_nor_its_server[always]"),
    Guard("host", "data that were replaced since a process became ready", "runtime/daemon/ready.py", " and kept.seen == _identify(start.reads)", "", "runtime/daemon/test_ready.py::test_a_job_that_differs_gets_a_process_of_its_own"),
    Guard("host", "results that a job overwrites", "runtime/daemon/job_start.py", "(state,), devices=self", "(state, *self.reads[-1:]), devices=self", f"{HOSTILE_JOBS}::test_a_job_that_plants_links_pipes_and_lines_harms_neither_its_site_nor_its_server[always]"),
    Guard("host", "memory of all processes together", "runtime/confinement/watching.py", "            if taken > self._order.memory:", "            if False:", f"{HOSTILE_JOBS}::test_memory_is_bounded_for_all_processes_of_a_job_together[always-children]"),
    Guard("host", "memory that no process maps as its own", "runtime/confinement/watching.py", "        return known + private + sum(", "        return private + 0 * sum(", f"{HOSTILE_JOBS}::test_memory_is_bounded_for_all_processes_of_a_job_together[always-shared]"),
    Guard("host", "shared memory without end", "runtime/confinement/sandbox.py", 'str(walls.shared or _half()), "--tmpfs", "/dev/shm", "--size", ', "", f"{HOSTILE_JOBS}::test_shared_memory_of_a_sandbox_has_a_size_and_its_devices_are_closed"),
    Guard("host", "devices that a job plants", "runtime/confinement/sandbox.py", '"--remount-ro", "/dev", ', "", f"{HOSTILE_JOBS}::test_shared_memory_of_a_sandbox_has_a_size_and_its_devices_are_closed"),
    Guard("host", "a server with another memory", "runtime/daemon/monitor.py", "        if self._token and self._token not in was and not self._accepts:", "        if False:", "runtime/security/test_lost_memory.py::test_no_kill_makes_an_honest_pair_refuse_and_a_copy_is_found_once_a_token_was_confirmed"),
    Guard("host", "a ledger that was lost", "runtime/site/ledger.py", "            if not accept_lost:", "            if False:", "runtime/security/test_lost_memory.py::test_a_ledger_that_lost_lines_is_refused_and_a_whole_one_is_not"),
    Guard("host", "files without a name", "runtime/confinement/watching.py", "                    written += measure_nameless(", "                    written += 0 * measure_nameless(", f"{HOSTILE_JOBS}::test_what_a_job_writes_is_counted_wherever_it_hides_it[always-child-scratch]"),
    Guard("host", "closed folders", "runtime/confinement/folders.py", "            if opening:", "            if False:", "runtime/confinement/test_folders.py::test_a_closed_folder_is_counted_and_removed"),
    Guard("host", "folders without end", "runtime/confinement/folders.py", "                if len(path) > DEEPEST:", "                if False:", "runtime/confinement/test_folders.py::test_folders_without_end_end_the_measuring_and_are_removed"),
    Guard("host", "a library of another user", "native.py", "found.st_uid == os.geteuid() and", "True and", "secure/test_native_cache.py::test_a_library_of_another_user_is_not_loaded"),
    Guard("host", "a library that was changed", "native.py", ' == path.suffixes[0].removeprefix("."):', " != 0:", "secure/test_native_cache.py::test_a_library_that_is_not_the_one_that_was_compiled_is_not_loaded"),
    Guard("host", "a folder of another user", "native.py", "        if why := _why_not_private(part):", "        if False:", "secure/test_native_cache.py::test_a_folder_of_another_user_is_not_used[owner]"),
    Guard("host", "descendants that outlive an attempt", "runtime/daemon/child.py", "    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)", "    pass", f"{SANDBOX}::test_whatever_a_job_has_started_ends_with_its_attempt[tcp-never]"),
    Guard("host", "descendants that outlive an attempt in a sandbox", "runtime/confinement/sandbox.py", ' "--die-with-parent",', "", f"{SANDBOX}::test_whatever_a_job_has_started_ends_with_its_attempt[tcp-always]"),
    Guard("host", "a link in a result", "runtime/confinement/folders.py", 'return "" if found.st_nlink == 1 else "a second name of a file"', 'return ""', "runtime/confinement/test_unconfined_jobs.py::test_own_files_are_plain_files_of_their_folder"),
    Guard("host", "a link that a result becomes", "runtime/confinement/folders.py", '_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | ', "_NO_LINK = ", "runtime/confinement/test_unconfined_jobs.py::test_own_files_are_plain_files_of_their_folder"),
    Guard("host", "a job without the sandbox that a policy asks for", "runtime/worker/policies.py", "if policy is not None and policy.confined and not confined:", "if False:", "runtime/confinement/test_confining.py::test_a_policy_insists"),
    Guard("host", "an event that is changed", "core/persistence/trail.py", "if event.number != self.head.number + 1 or event.hash != right:", "if event.number != self.head.number + 1:", "runtime/store/test_trail.py::test_a_file_that_was_changed_while_the_server_was_away_is_found"),
    Guard("host", "a trail that is cut off", "core/persistence/trail.py", "        if head != self.head:", "        if False:", "runtime/store/test_trail.py::test_what_is_changed_removed_added_or_cut_off_is_found"),
    Guard("host", "a trail that was written anew", "core/persistence/trail.py", "if self.known is not None and self.known.number == event.number and self.known.hash != right:", "if False:", "runtime/store/test_trail.py::test_what_is_changed_removed_added_or_cut_off_is_found"),
    Guard("host", "a job that holds the store's lock", "runtime/store/database.py", 'connection.execute("PRAGMA locking_mode = EXCLUSIVE")', "pass", "runtime/store/test_trail.py::test_while_a_store_is_open_nobody_else_gets_a_lock_on_it"),
    # 5. a person cannot freeze the server
    Guard("people", "settings of many values", "runs/yaml.py", "        if self._made > self.most:", "        if False:", f"{PEOPLE}::test_settings_without_end_delay_nobody[many values-tcp]"),
    Guard("people", "settings nested without end", "runs/yaml.py", "        if self.flow_level >= _DEEPEST:", "        if False:", "runs/test_strict_yaml.py::test_reading_stops_at_the_first_bracket_too_deep"),
    Guard("people", "settings of a megabyte", "runtime/bundle.py", "most = limits.job if file.path == JOB_FILE else limits.file", "most = limits.file", f"{PEOPLE}::test_settings_without_end_delay_nobody[a million bytes-tcp]"),
    Guard("people", "settings that the event loop reads", "runtime/server/requests.py", "verified, spec = await asyncio.to_thread(self._read, bundle)", "verified, spec = self._read(bundle)", f"{PEOPLE}::test_settings_are_read_once_and_not_by_the_loop[tcp]"),
    Guard("people", "jobs beyond a quota", "runtime/server/looking.py", "        if there >= self._jobs:", "        if False:", f"{PEOPLE}::test_nobody_has_more_jobs_or_bytes_than_a_share[tcp]"),
    Guard("people", "disk beyond a quota", "runtime/server/looking.py", "        if kept + size > self._size:", "        if False:", f"{PEOPLE}::test_nobody_has_more_jobs_or_bytes_than_a_share[tcp]"),
    Guard("people", "lists without end", "runtime/server/looking.py", "call_later(_REST * (time.perf_counter() - begin), lock.release)", "call_soon(lock.release)", f"{PEOPLE}::test_a_list_is_not_made_for_one_person_all_the_time[tcp]"),
    Guard("people", "what a deleted job leaves at its sites", "runtime/server/requests.py", "                    session.stop(job, 0, end=True)", "                    pass", f"{PEOPLE}::test_a_deleted_job_leaves_events_and_a_ledger[tcp-connected]"),
    Guard("people", "what a killed deletion leaves", "runtime/server/requests.py", "                await asyncio.to_thread(remove_tree, path)", "                pass", f"{PEOPLE}::test_what_a_kill_leaves_of_a_deletion_is_cleared[tcp]"),
    # 6. influence is bounded
    Guard("influence", "a weight of more rows than declared", "runtime/network/validation.py", "    if weight > most:", "    if False:", f"{REFUSED}[a weight of more rows than it has]"),
    Guard("influence", "a metric that moves cursors", "runtime/network/validation.py", 'if total.role != "metric" or not _is_plain(name):', 'if total.role != "metric":', f"{EXPECTED}::test_what_is_expected_passes"),
    Guard("influence", "an update far outside its cohort", "runtime/network/validation.py", "if middle > 0 and value > FAR * middle", "if False", f"{OUTSIDE}[a large update]"),
    Guard("influence", "a loss far outside its cohort", "runtime/network/validation.py", 'if total.role == "metric" and "loss" in name:', "if False:", f"{OUTSIDE}[a large loss]"),
    Guard("influence", "columns in other units", "data/units.py", "        if abs(scale - middle) > FAR", "        if False", "runtime/worker/test_units.py::test_a_factor_of_2501_is_named_before_the_first_round_and_by_one_setting_ends_the_job"),
    # 7. a site's consent
    Guard("consent", "people whom nobody has named", "runtime/consent.py", 'raise self._make_refusal(f"{signer} may run nothing here", f"let the site add {signer.name!r} to `people`")', "return None", f"{CONSENT}::test_a_name_decides_before_patterns"),
    Guard("consent", "a pattern before a name", "runtime/consent.py", "for may in (*exact, *(may", "for may in (*exact[:0], *(may", f"{CONSENT}::test_a_name_decides_before_patterns"),
    Guard("consent", "code of a job's own", "runtime/consent.py", "                    policy.admit_code(name)", "                    pass", f"{CONSENT}::test_code_is_refused_before_it_is_unpacked"),
    Guard("consent", "a job whose signer may not run it", "runtime/site/attempt.py", "self._allow = self._post.consent().admit(verified)", "self._allow = None", f"{CONSENT}::test_people_run_what_the_site_lets_them_and_the_file_decides_anew_for_each_job[tcp]"),
    Guard("consent", "a kind of job that its signer may not run", "runtime/worker/process.py", "            require_names(order[\"allow\"], one.names(), f\"consent of site {str(order['name'])!r}\")", "            pass", f"{CONSENT}::test_people_run_what_the_site_lets_them_and_the_file_decides_anew_for_each_job[tcp]"),
    Guard("consent", "hours", "runtime/site/site.py", "        if closed:\n            return Answer(False, closed)", "        del closed", f"{CONSENT}::test_resources_and_hours_are_the_sites[tcp]"),
    Guard("consent", "resources and jobs at once", "runtime/site/site.py", "        self._manager.limit(consent.most, consent.jobs)", "        pass", f"{CONSENT}::test_resources_and_hours_are_the_sites[tcp]"),
    Guard("consent", "a job that goes on after consent is withdrawn", "runtime/site/site.py", "                await running.reconsider(consent, closed)", "                pass", f"{CONSENT}::test_resources_and_hours_are_the_sites[tcp]"),
    Guard("consent", "a consent that cannot be read", "runtime/site/site.py", "return Answer(False, f\"site {self.kit.name!r} cannot read its consent: {error}\")", "consent = Consent(self.kit.name)", f"{CONSENT}::test_a_consent_that_cannot_be_read_lets_nothing_begin[tcp]"),
    Guard("consent", "a job that no admin has signed", "runtime/bundle.py", "    if not identity.fits(_PURPOSE, text, signature, certificate):", "    if False:", "runtime/bundle/test_bundle.py::test_a_manifest_of_ones_own_is_refused"),
    Guard("consent", "a job that somebody of another role has signed", "runtime/identity.py", "    if peer.role not in allowed:", "    if False:", "runtime/bundle/test_bundle.py::test_the_signer_must_have_the_role"),
    # 8. takeovers are seen
    Guard("takeovers", "a second process with a site's kit", "runtime/line/endpoints.py", "            if refused:\n                raise Violation(TAKEN)", "            pass", "runtime/server/test_refused.py::test_of_two_processes_with_one_kit_the_first_stays_and_the_attempt_is_on_record[tcp]"),
    Guard("takeovers", "an attempt that nobody sees", "runtime/line/endpoints.py", "            self._on_second(pipe.peer, there, here, refused)", "            pass", "runtime/server/test_refused.py::test_of_two_processes_with_one_kit_the_first_stays_and_the_attempt_is_on_record[tcp]"),
    Guard("takeovers", "a party that leaves unseen", "runtime/server/server.py", '        self._note(line.peer, "left", line, why=visible(str(error), 1000))', "        pass", "runtime/server/test_refused.py::test_of_two_processes_with_one_kit_the_first_stays_and_the_attempt_is_on_record[tcp]"),
    Guard("takeovers", "a revoked party that stays", "runtime/server/site_session.py", '                line.lose(LineLost(f"the certificate of {line.peer} was revoked"))', "                pass", "runtime/server/test_refused.py::test_a_revoked_party_is_cut_off_and_told_why[tcp]"),
    Guard("takeovers", "events without end about refused connections", "runtime/transport/base.py", "if count == 1 and self._told < _KINDS:", "if True:", f"{CROWDS}::test_refusals_are_told_once_each_and_the_rest_as_a_number"),
    Guard("takeovers", "a log without end of refused connections", "runtime/transport/base.py", "        if count <= _LINES:", "        if True:", f"{CROWDS}::test_the_log_of_refusals_is_bounded_whatever_comes"),
    Guard("takeovers", "a host whose handshakes fail again and again", "runtime/transport/sockets.py", "        if not self._failed.throttled(visitor.host):", "        if True:", f"{CROWDS}::test_a_host_whose_handshakes_fail_is_throttled_and_another_is_not"),
    Guard("takeovers", "the same over gRPC", "runtime/transport/rpc.py", "for found in new if not self._failed.admits(found.remote[0]) and end(found)}", "for found in new if False}", f"{CROWDS}::test_over_a_network_a_host_that_fails_again_and_again_is_throttled_and_a_site_elsewhere_is_not[grpc]"),
    Guard("takeovers", "a silent crowd over gRPC", "runtime/transport/rpc.py", "        self._make_room()", "        pass", f"{CROWDS}::test_a_crowd_of_thousands_that_says_nothing_delays_nobody[grpc]"),
    Guard("takeovers", "a silent crowd", "runtime/transport/sockets.py", "        if count > self._most // FAIR:", "        if False:", f"{CROWDS}::test_a_crowd_of_thousands_that_says_nothing_delays_nobody"),
    Guard("takeovers", "a crowd of any size", "runtime/transport/sockets.py", "while len(self._inside) >= self._most:", "while False:", f"{CROWDS}::test_a_crowd_that_says_nothing_is_turned_out_and_who_shows_a_certificate_is_let_in"),
    # 9. residue
    Guard("residue", "an error of megabytes in the store", "runtime/store/changes.py", "        return visible(tree, LOG_WIDTH)\n    if isinstance(tree, Mapping)", "        return tree\n    if isinstance(tree, Mapping)", "runtime/store/test_stores.py::TestSqlite::test_an_error_of_megabytes_is_kept_as_kilobytes"),
    Guard("residue", "a malformed message of any kind", "runtime/network/validation.py", "except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, LetterError) as error:", "except LetterError as error:", "runtime/line/test_mutations.py::test_what_is_malformed_in_any_way_is_a_message_error"),
    Guard("residue", "another exception for bytes that are no text", "core/message/decoder.py", "    except UnicodeDecodeError as error:", "    except ZeroDivisionError as error:", "runtime/line/test_mutations.py::test_what_is_malformed_in_any_way_is_a_message_error"),
    Guard("residue", "a log that is never rotated", "runs/log.py", "maxBytes=most, backupCount=kept if most else 0", "maxBytes=0, backupCount=0", "cli/test_log_lines.py::test_the_log_is_rotated"),
    Guard("residue", "a forged line of a log", "runs/log.py", 'return _OBEYED.sub("\\ufffd", _ENDS.sub(" ⏎ ", text))', "return text", "cli/test_log_lines.py::test_a_message_with_line_breaks_is_one_line_of_the_log"),
    Guard("residue", "a forged line of a job", "cli/asking.py", "{escape(one_line(job['name']))}", "{escape(job['name'])}", "cli/test_log_lines.py::test_what_others_said_is_one_line_in_tables_of_jobs_and_events"),
    Guard("residue", "an attempt's code and scratch", "runtime/server/attempt.py", "            await self._process.clear()", "            pass", "runtime/confinement/test_unconfined_jobs.py::test_a_job_holds_no_lock_rewrites_no_event_and_sends_no_file_of_others[tcp]"),
    Guard("residue", "a site that signs what it may not", "runtime/bundle.py", '    if signer.role != "admin":', "    if False:", "runtime/bundle/test_bundle.py::test_a_site_signs_alone_what_names_it_and_has_no_code"),
    Guard("residue", "a site that sees the jobs of others", "runtime/server/looking.py", "                _require_part(peer, self._store.get(job))", "                pass", "runtime/security/test_front.py::test_a_sites_people_have_a_line_of_their_own_and_see_the_sites_jobs[tcp]"),
    # 10. what an operator reads
    Guard("operators", "sites that were never there", "runtime/server/site_session.py", "return sorted(self._listed.among(self._met.named) - self._roles.keys())", "return sorted(self._met.named.keys() - self._roles.keys())", f"{OPERATORS}::test_every_site_of_the_project_is_listed_with_when_it_was_last_there[tcp]"),
    Guard("operators", "a sighting that a restart forgets", "runtime/server/site_session.py", "            seen.keep()", "            pass", f"{OPERATORS}::test_every_site_of_the_project_is_listed_with_when_it_was_last_there[tcp]"),
    Guard("operators", "a port that nobody asked for", "runtime/daemon/monitor.py", '    if address is None:\n        yield ""\n        return', '    if address is None:\n        address = "127.0.0.1:0"', f"{OPERATORS}::test_nothing_is_served_unless_it_is_asked_for_and_a_taken_port_is_named"),
    Guard("operators", "a disk that is full and says ok", "runtime/server/server.py", 'return "" if free > _ROOM else', 'return "" if True else', f"{OPERATORS}::test_health_and_metrics_of_a_server_and_a_site[tcp]"),
    Guard("operators", "a revoked site that is waited for without a word", "runtime/server/site_session.py", "return row is not None and self._revoked(int(row.serial, 16))", "return False", f"{OPERATORS}::test_every_site_of_the_project_is_listed_with_when_it_was_last_there[tcp]"),
    Guard("operators", "a failure that names no site", "cli/asking.py", "if place and place not in job[\"reason\"] else", "if False else", "cli/test_asking.py::test_a_failure_names_where_it_happened"),
    # 11. nobody chooses a public lot
    Guard("lots", 'another set of commitments than the one shown before', "secure/lot.py", '    island.promise(f"set {attempt} of the lot {path}", label)\n    return label', '    return label', f"{LOTS}::test_a_server_that_shows_parties_different_commitments_gets_no_reveal"),
    Guard("lots", 'two sets, each shown to some parties', "secure/lot.py", '        if agree < majority:', '        if False:', f"{LOTS}::test_a_server_that_shows_parties_different_commitments_gets_no_reveal"),
    Guard("lots", 'votes of parties that were told of another cohort', "secure/lot.py", '_digest("set", path, attempt, terms.message(), dict(', '_digest("set", path, attempt, dict(', f"{LOTS}::test_votes_count_for_the_terms_that_a_party_was_told"),
    Guard("lots", "a lot without a party's own commitment", "secure/lot.py", 'if not _opens(path, attempt, island.name, commitments.get(island.name, b""), secret):', 'if False:', f"{LOTS}::test_a_server_that_leaves_a_party_out_or_puts_another_commitment_in_its_place_gets_nothing_from_it"),
    Guard("lots", 'a second commitment in an attempt', "secure/lot.py", '    island.promise(f"commitment {attempt} of the lot {path}", commitment)\n', '', f"{LOTS}::test_a_party_that_has_committed_uses_no_lot_with_another_commitment_of_its_own"),
    Guard("lots", 'more attempts than agreed', "secure/lot.py", 'not 0 <= attempt <= terms.retries', 'not 0 <= attempt', f"{LOTS}::test_a_server_that_asks_twice_gets_the_same_bytes_or_a_refusal"),
    Guard("lots", 'a lot that was drawn anew', "secure/lot.py", '        island.promise(f"outcome {before} of the lot {path}", "void")', '        pass', f"{LOTS}::test_a_server_that_asks_twice_gets_the_same_bytes_or_a_refusal"),
    Guard("lots", 'other terms in a later attempt', "secure/lot.py", '    island.promise(f"terms of the lot {path}", _digest("terms", path, terms.message()))', '    pass', f"{LOTS}::test_a_server_that_asks_twice_gets_the_same_bytes_or_a_refusal"),
    Guard("lots", 'bytes that were not committed to, at a party', "secure/lot.py", '[name for name in made.parties if not made.opens(name)]', '[]', f"{LOTS}::test_a_lot_is_a_message_and_every_field_counts"),
    Guard("lots", 'bytes that were not committed to, at the server', "secure/lot.py", 'return name in lot.commitments and lot.opens(name)', 'return name in lot.reveals', f"{LOTS}::test_who_lies_or_withholds_is_named_and_left_out_and_the_lot_is_drawn_anew"),
    Guard("lots", 'another lot in place of the one that was named', "secure/lot.py", 'if lot.path.rpartition("/")[2] != _name(at):', 'if False:', f"{LOTS}::test_a_party_uses_one_lot_of_a_name_and_none_of_another"),
    Guard("lots", 'a second lot of a name', "secure/lot.py", '    island.promise(f"the lot {lot.path}", lot.value)\n', '', f"{LOTS}::test_a_party_uses_one_lot_of_a_name_and_none_of_another"),
    Guard("lots", 'a lot of another set than the one revealed for', "secure/lot.py", '    _bind_set(island, lot.path, lot.attempt, terms, lot.commitments)\n', '', f"{LOTS}::test_a_party_that_was_shown_a_set_uses_no_lot_of_another"),
    Guard("lots", 'a commitment in the name of a party that was not asked', "secure/lot.py", 'return bool(own and lot.reveals.get(island.name) == state["secret"])', 'return True', f"{LOTS}::test_a_party_denies_a_lot_that_has_words_put_into_its_mouth"),
    # 12. the authority that certifies keys is not the server's
    Guard("authority", "the authority's key in the server's kit", "runtime/provision/kit_checks.py", 'for path in (kit.folder, near, work, work / kit.name)', 'for path in (near, work, work / kit.name)', f"{DOCTOR}::test_a_server_has_the_authoritys_key_nowhere_near_its_kit"),
    Guard("authority", 'an encrypted key of the authority', "runtime/provision/kit_checks.py", 'if file.name.startswith("ca-key"):', 'if False:', f"{DOCTOR}::test_an_old_key_of_the_authority_counts_and_so_does_an_encrypted_one"),
    Guard("authority", "a server's certificate that is an authority's", "runtime/provision/kit_checks.py", '.value.ca:', '.value.ca and False:', f"{DOCTOR}::test_a_server_that_can_certify_keys_is_found_by_itself_and_by_its_sites"),
    Guard("authority", 'a server with the key of the authority', "runtime/provision/kit_checks.py", 'if any(own == _public(authority) for authority in authorities):', 'if False:', f"{DOCTOR}::test_a_server_that_can_certify_keys_is_found_by_itself_and_by_its_sites"),
    Guard("authority", 'a server that certifies keys, at a site', "runtime/provision/doctor.py", '    yield _apart(kit, made.certificate, node)\n', '', f"{DOCTOR}::test_a_server_that_can_certify_keys_is_found_by_itself_and_by_its_sites"),
)  # fmt: skip


def switched_off(guard: Guard, root: Path) -> str:
    """Switch a guard off below a copy of the repository; return the text that was there.

    Raises:
        ValueError: the file does not have the line once.
    """
    path = root / "src" / "atoll" / guard.file
    text = path.read_text(encoding="utf-8")
    if text.count(guard.line) != 1:
        raise ValueError(f"{guard.file} has {text.count(guard.line)} times: {guard.line}")
    path.write_text(text.replace(guard.line, guard.off), encoding="utf-8")
    return text


def copied(folder: Path) -> Path:
    """Copy the repository, so that nobody runs what is switched off."""
    folder.chmod(0o755)  # fronts of some tests run as another user
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run(tests: Sequence[str], root: Path, patience: float = PATIENCE) -> str:
    """Run tests below a copy; return how they ended: one fails or hangs, they pass, or they cannot be run."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", ""]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*words, *(f"tests/{test}" for test in tests)], cwd=root, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as running:  # fmt: skip
        try:
            said, _ = running.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            return "hangs"
    last = said.strip().splitlines()[-1:]
    if running.returncode == 1 and any(re.search(r"\d failed\b", line) for line in last):
        return "fails"
    return "PASSES" if running.returncode == 0 else f"CANNOT BE RUN ({running.returncode}, {last})"


def main(words: list[str]) -> int:
    """Switch off every guard of a part, or that stops something with these words; return how many tests did not notice."""
    chosen = [guard for guard in GUARDS if all(word == guard.part or word in guard.stops for word in words)]
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="atoll-guards-") as made:
        root = copied(Path(made))
        tests = list(dict.fromkeys(guard.test for guard in chosen))
        before = run(tests, root, PATIENCE * len(tests))
        print(f"{before}  with all guards: {len(tests)} tests", flush=True)
        for guard in chosen if before == "PASSES" else ():
            text = switched_off(guard, root)
            try:
                ended = run([guard.test], root)
            finally:
                (root / "src" / "atoll" / guard.file).write_text(text, encoding="utf-8")
            noticed += ended in ("fails", "hangs")
            print(f"{ended:6}  {guard.part}: {guard.stops}  ({guard.test})", flush=True)
    print(f"{noticed} of {len(chosen)} tests fail or hang without their guard")
    return len(chosen) - noticed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
