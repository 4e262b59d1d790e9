"""The verbs of keys."""

from __future__ import annotations

from angelia.api import PageQuery
from angelia.client import channel_signing, key_calls, peer_keys
from angelia.client.namespaces import Mode, Namespace, Verb
from angelia.client.operation_requests import naming, naming_and_asking, plain
from angelia.keys import api as keys


class KeyVerbs(Namespace[Mode]):
    """Key bundles, one-time keys, rotation and its schedules."""

    publish_bundle = Verb(key_calls.publish_bundle)
    rotate_bundle = Verb(key_calls.rotate_bundle)
    emergency_bundle = Verb(key_calls.emergency_bundle)
    bundle = Verb(key_calls.bundle)
    bundles_since = Verb(key_calls.bundles_since)
    add_one_time_keys = Verb(key_calls.add_one_time_keys)
    count_one_time_keys = Verb(plain(keys.COUNT_ONE_TIME_KEYS))
    revoke = Verb(naming_and_asking(keys.REVOKE, keys.RevokeBody))
    history = Verb(naming_and_asking(keys.HISTORY, PageQuery))
    schedules = Verb(key_calls.schedules)
    put_schedule = Verb(key_calls.put_schedule)
    remove_schedule = Verb(key_calls.remove_schedule)
    report_rotation = Verb(naming_and_asking(keys.REPORT_ROTATION, keys.RotatedBody))
    rotate_data_key = Verb(naming(keys.ROTATE_DATA_KEY))
    publish = Verb(channel_signing.publish_keys)
    rotate = Verb(channel_signing.rotate_keys)
    emergency_rotate = Verb(channel_signing.emergency_rotate_keys)
    rotate_due = Verb(channel_signing.rotate_due_keys)
    renew_due = Verb(channel_signing.tend_keys)
    find = Verb(peer_keys.find_keys)
