-- Parts of which the statements of other slices are made.

-- part: version
-- Read with every check: decisions cached under another version are not used.
SELECT version FROM policy_version
