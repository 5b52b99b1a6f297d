"""download.py - files from the network for the data makers: a download that was cut goes on with its next byte, checksums are compared

PATH.part grows until it is complete, then it is PATH; PATH.part.json holds the server's mark of the content. Tests: dev/check_data.py
"""
import concurrent.futures
import hashlib
import http.client
import os
import threading
import time
import urllib.error
import urllib.request

from common import Progress, Refusal, Writing, describe, file_size, read_json, remove, say, shown, write_json

RETRY_SECONDS = (1, 2, 4, 8, 16)    # waits between attempts of a download that brought something; one that never did gets the first two
NETWORK_TIMEOUT = 30                # seconds without a byte


class CutShort(Exception):
    """A transfer that ended early."""


def open_url(url, headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers, **{"User-Agent": "llm-data-maker"})), timeout=NETWORK_TIMEOUT)


def fetch_on(url, path, known_content, progress):
    """One attempt to get what PATH.part lacks. Returns normally when it is complete. known_content: a checksum will be compared at the end; else a rest
    is asked for only if the server can tell that the file is still the same (PATH.part.json keeps its mark)."""
    part, note = path + ".part", path + ".part.json"
    have, mark = max(file_size(part), 0), (read_json(note) or {}).get("mark", "")
    headers = {}
    if have and (mark or known_content):
        headers["Range"] = f"bytes={have}-"
        if mark:
            headers["If-Range"] = mark
    try:
        answer = open_url(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if (error.headers.get("Content-Range") or "").endswith(f"*/{have}"):
            return  # there is no rest
        remove(part)
        raise CutShort("the file on the server is shorter than what is here")
    with answer:
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if answer.status == 206 and not resumed:
            remove(part)
            raise CutShort("the server sent another part than the one asked for")
        length = answer.headers.get("Content-Length")
        with Writing(part):
            file = open(part, "ab" if resumed else "wb")
        with file:
            if not resumed:
                have, mark = 0, answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                write_json(note, {"mark": "" if mark.startswith("W/") else mark})
            total = have + int(length) if length else None
            while True:
                piece = answer.read1(1 << 18)
                if not piece:
                    break
                with Writing(part):
                    file.write(piece)
                    file.flush()  # not at the close, where an error would pass for one of the network
                have += len(piece)
                progress.show(have, have / total if total else None)
            with Writing(part):
                file.flush()
                os.fsync(file.fileno())
    if total is not None and have != total:
        raise CutShort(f"the connection ended after {have:,} of {total:,} bytes")


def download_path(url, path, sha256):
    """Where fetch puts it: what has no checksum is named after its address, too, so that it is not taken for something else later."""
    folder, name = os.path.split(path)
    return path if sha256 else os.path.join(folder, hashlib.sha256(url.encode()).hexdigest()[:8] + "." + name)


def fetch(url, path, sha256="", force=False):
    """Downloads url, going on with what an earlier attempt left, or takes what one completed; if forced, only where a checksum tells that this is the same.
    Returns the path of the file: download_path, or a url that is a local file as it is."""
    if "://" not in url:
        if not os.path.isfile(url):
            raise Refusal(f"there is no file '{url}'", "--url takes an address with ://, or a local file")
        verify(url, f"'{url}'", sha256)
        return url
    path = download_path(url, path, sha256)
    if force and not sha256:
        for name in (path, path + ".part", path + ".part.json"):
            remove(name)
    if os.path.exists(path):
        remove(path + ".part.json")
        try:
            verify(path, url, sha256)
            return path
        except Refusal:
            say(f"{shown(path)} is another file: it is fetched again")
            remove(path)
    progress, failures = Progress("download " + os.path.basename(path), "MB"), 0
    before = start = max(file_size(path + ".part"), 0)
    while True:
        try:
            fetch_on(url, path, bool(sha256), progress)
            break
        except urllib.error.HTTPError as error:
            reason, final = f"HTTP {error.code} {error.reason}", error.code not in (408, 429, 500, 502, 503, 504)
        except ValueError as error:
            reason, final = str(error), True
        except (OSError, http.client.HTTPException, CutShort) as error:
            reason, final = describe(error) if isinstance(error, OSError) else str(error) or type(error).__name__, False
        now = max(file_size(path + ".part"), 0)
        failures = 0 if now > before else failures + 1
        before = now
        if final or failures > (len(RETRY_SECONDS) if now > start else 2):
            progress.end()
            raise Refusal(f"cannot download {url}: {reason}" + (f" ({now:,} bytes of it are here)" if now > 0 else ""),
                          "run the same command again, without --force: it goes on from there; or fetch the file by other means and name it: --url FILE (behind a proxy: https_proxy)")
        time.sleep(RETRY_SECONDS[min(max(failures - 1, 0), len(RETRY_SECONDS) - 1)])
    progress.end()
    try:
        verify(path + ".part", url, sha256)
    except Refusal:
        remove(path + ".part")
        remove(path + ".part.json")
        raise
    with Writing(path):
        os.replace(path + ".part", path)
    remove(path + ".part.json")
    return path


def verify(path, url, sha256):
    """Refuses a file whose SHA-256 is another one. sha256 "": any will do."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20) if sha256 else b"", b""):
            digest.update(piece)
    if sha256 and digest.hexdigest() != sha256:
        raise Refusal(f"{url} is not the file that was expected: {file_size(path):,} bytes with SHA-256 {digest.hexdigest()} instead of {sha256}",
                      "run again; if it stays so, the file has changed there: --url names another copy, --sha256 any takes what comes")


def source_of(arguments):
    """What the data are made from, for the notes: its checksum, or else its address, for a local file with size and time."""
    if arguments.sha256 or "://" in arguments.url:
        return arguments.sha256 or arguments.url
    changed = os.path.getmtime(arguments.url) if os.path.exists(arguments.url) else 0
    return f"{os.path.abspath(arguments.url)}, {file_size(arguments.url)} bytes of {changed:.3f}"


def in_background(function, *arguments):
    """Calls function in a thread that does not keep the program from ending; its result, or what it raised, comes from the future returned."""
    future = concurrent.futures.Future()

    def call():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
    threading.Thread(target=call, daemon=True).start()
    return future
