-- Parts of which the statements of other slices are made. `keys.admission` reads their columns.

-- part: standing
-- Of an envelope `w` (recipient, key_id, sender, made_at): the suites that its recipient accepted then (those of the bundle
-- of that time, or of its first one), the key that it is sealed to, and if that is none of a bundle, the one-time key.
SELECT coalesce(
    (SELECT suites FROM bundles AS b WHERE b.agent_nhi = w.recipient AND b.issued_at <= w.made_at
     ORDER BY b.bundle_version DESC LIMIT 1),
    (SELECT suites FROM bundles AS b WHERE b.agent_nhi = w.recipient ORDER BY b.bundle_version LIMIT 1)
  ) AS suites,
  k.key_type, k.status AS key_status, k.expires_at AS key_expires_at, k.rotated_at AS key_rotated_at,
  o.key_type AS one_time_type, o.issued_at AS one_time_issued_at
FROM (VALUES (1)) AS single
LEFT JOIN key_records AS k ON k.agent_nhi = w.recipient AND k.key_id = w.key_id
LEFT JOIN one_time_keys AS o ON k.key_id IS NULL AND o.agent_nhi = w.recipient AND o.key_id = w.key_id
  AND o.issued_to = w.sender AND o.used_at IS NULL

-- part: signer
-- Of a signing pair `w` (signer, signer_id, pair_known): whether both halves are there and how they stand; their bytes, 2 kB,
-- unless the caller has them.
SELECT c.key_id IS NOT NULL AND q.key_id IS NOT NULL AS pair_found, c.rotated_at AS pair_rotated_at,
  c.revoked_at AS pair_revoked_at, c.compromised_since AS pair_compromised_since,
  CASE WHEN NOT w.pair_known THEN c.public_key END AS ed25519, CASE WHEN NOT w.pair_known THEN q.public_key END AS ml_dsa
FROM (VALUES (1)) AS single
LEFT JOIN key_records AS c ON c.agent_nhi = w.signer AND c.signer_id = w.signer_id AND c.key_type = 'ed25519'
LEFT JOIN key_records AS q ON q.agent_nhi = w.signer AND q.signer_id = w.signer_id AND q.key_type = 'ml_dsa_65'

-- part: revoked
-- Whether a key of an accepted envelope `w` (recipient, key_id, sender, signer_id, accepted_at) was revoked since.
SELECT coalesce((
    SELECT true FROM key_records AS k WHERE k.agent_nhi = w.recipient AND k.key_id = w.key_id AND k.status = 'revoked'
  ), (
    SELECT true FROM key_records AS k WHERE k.agent_nhi = w.sender AND k.signer_id = w.signer_id
      AND w.accepted_at >= coalesce(k.compromised_since, k.revoked_at)
    LIMIT 1
  ), false) AS revoked

-- part: spend_one_time
-- Marks the one-time keys of `wanted` (recipient, key_id, sender, at, issued_since) as used, if they were issued to that sender
-- since then and are unused. In one order in all processes, so that two transactions do not wait for each other.
WITH free AS MATERIALIZED (
  SELECT o.agent_nhi, o.key_id, w.at FROM (SELECT * FROM wanted ORDER BY recipient, key_id) AS w
  CROSS JOIN LATERAL (
    SELECT agent_nhi, key_id, issued_to, issued_at, used_at FROM one_time_keys
    WHERE agent_nhi = w.recipient AND key_id = w.key_id LIMIT 1 FOR UPDATE
  ) AS o
  WHERE o.issued_to = w.sender AND o.used_at IS NULL AND o.issued_at >= w.issued_since
)
UPDATE one_time_keys AS o SET used_at = (SELECT at FROM free WHERE free.agent_nhi = o.agent_nhi AND free.key_id = o.key_id)
WHERE o.agent_nhi = ANY (ARRAY(SELECT agent_nhi FROM free)) AND o.key_id = ANY (ARRAY(SELECT key_id FROM free))
  AND ((o.agent_nhi, o.key_id) IN (SELECT agent_nhi, key_id FROM free)) IS TRUE
RETURNING o.agent_nhi, o.key_id
