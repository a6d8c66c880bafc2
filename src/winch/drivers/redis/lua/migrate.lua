-- migrate: the layout's version is written where there is none, and whether events are kept.
-- A:      version, events
-- Return: {version before or '', version now, events, 'spread' where gates live in the shards of their keys}
-- Keys:   meta, recorded
-- flags:
-- parts:
local before = call('HGET', K.meta, 'version') or ''
call('HSETNX', K.meta, 'version', A.version)
-- A store of an earlier release has all its gates at home, and keeps them there.
if before == '' then call('HSET', K.meta, 'gates', 'spread') end
if A.events then call('HSET', K.meta, 'events', '1') end
if call('HGET', K.meta, 'events') == '1' then call('SET', K.recorded, '1') end
return {before, call('HGET', K.meta, 'version'), call('HGET', K.meta, 'events') or '0', call('HGET', K.meta, 'gates') or ''}
