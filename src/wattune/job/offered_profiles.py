"""Another device's profile as a prior: it says where to begin, and this device measures every cell itself."""

from __future__ import annotations

from wattune import profiling
from wattune.errors import ServerError, ServerRefused, ServerUnavailable
from wattune.job.run import ResumableRun
from wattune.records import ProfileTable
from wattune.remote import Client


def offered_prior(run: ResumableRun, client: Client) -> ProfileTable | None:
    """Newest profile on the server of this board and model; None if there is none, or if it would not save a probe.

    A wrong or forged profile costs this device two probes, and does not change what the device chooses.
    """
    is_staircase = run.config.strategy in (None, "staircase") and run.limit().limit_w is not None
    if run.board.kind == "replayed" or not is_staircase:
        return None
    try:
        newest = client.newest_profile(profiling.profile_key(run.board, run.work, run.algorithm))
    except ServerUnavailable:
        return None  # the client has warned
    except (ServerError, ServerRefused) as error:
        run.warn(f"no profile of another device is used: {error}")
        return None
    if newest is None or newest[1].provenance.kind_on(run.board.kind):
        return None
    if run.progress is not None:
        run.progress(0, 0, f"profile: begins at the settings that {newest[0]} measured")
    return newest[1]
