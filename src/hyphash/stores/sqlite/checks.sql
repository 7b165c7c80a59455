-- What may be wrong in SQLite alone. See checks.sql of all stores.

-- damaged: the {0} in {1}, row {2}, is {3}, not {4}; restore the folder from a backup, or index the photos into a new one
SELECT 'path', 'photos', id AS place, typeof(path), 'text' FROM photos WHERE typeof(path) <> 'text'
UNION ALL SELECT 'content', 'photos', id, typeof(content), 'blob' FROM photos WHERE typeof(content) <> 'blob'
UNION ALL SELECT 'size', 'photos', id, typeof(size), 'integer' FROM photos WHERE typeof(size) <> 'integer'
UNION ALL SELECT 'modified', 'photos', id, typeof(modified), 'integer' FROM photos WHERE typeof(modified) <> 'integer'
UNION ALL SELECT 'width', 'photos', id, typeof(width), 'integer' FROM photos WHERE typeof(width) <> 'integer'
UNION ALL SELECT 'height', 'photos', id, typeof(height), 'integer' FROM photos WHERE typeof(height) <> 'integer'
UNION ALL SELECT 'thumbnail_hash', 'photos', id, typeof(thumbnail_hash), 'blob' FROM photos WHERE typeof(thumbnail_hash) <> 'blob'
UNION ALL SELECT 'sourced', 'photos', id, typeof(sourced), 'integer' FROM photos WHERE typeof(sourced) <> 'integer'
UNION ALL SELECT 'added', 'photos', id, typeof(added), 'text' FROM photos WHERE typeof(added) <> 'text'
UNION ALL SELECT 'changed', 'photos', id, typeof(changed), 'text' FROM photos WHERE typeof(changed) <> 'text'
UNION ALL SELECT 'taken', 'photos', id, typeof(taken), 'integer' FROM photos WHERE typeof(taken) NOT IN ('integer', 'null')
UNION ALL SELECT 'camera', 'photos', id, typeof(camera), 'text' FROM photos WHERE typeof(camera) NOT IN ('text', 'null')
UNION ALL SELECT 'latitude', 'photos', id, typeof(latitude), 'real' FROM photos WHERE typeof(latitude) NOT IN ('real', 'null')
UNION ALL SELECT 'longitude', 'photos', id, typeof(longitude), 'real' FROM photos WHERE typeof(longitude) NOT IN ('real', 'null')
UNION ALL SELECT 'photo', 'codes', photo, typeof(photo), 'integer' FROM codes WHERE typeof(photo) <> 'integer'
UNION ALL SELECT 'generation', 'codes', photo, typeof(generation), 'integer' FROM codes WHERE typeof(generation) <> 'integer'
UNION ALL SELECT 'code', 'codes', photo, typeof(code), 'blob' FROM codes WHERE typeof(code) <> 'blob'
UNION ALL SELECT 'scores', 'codes', photo, typeof(scores), 'blob' FROM codes WHERE typeof(scores) <> 'blob'
UNION ALL SELECT 'name', 'labels', id, typeof(name), 'text' FROM labels WHERE typeof(name) <> 'text'
UNION ALL SELECT 'changed', 'labels', id, typeof(changed), 'integer' FROM labels WHERE typeof(changed) <> 'integer'
UNION ALL SELECT 'photos', 'labels', id, typeof(photos), 'integer' FROM labels WHERE typeof(photos) <> 'integer'
UNION ALL SELECT 'photo', 'photo_labels', photo, typeof(photo), 'integer' FROM photo_labels WHERE typeof(photo) <> 'integer'
UNION ALL SELECT 'label', 'photo_labels', photo, typeof(label), 'integer' FROM photo_labels WHERE typeof(label) <> 'integer'
UNION ALL SELECT 'state', 'photo_labels', photo, typeof(state), 'integer' FROM photo_labels WHERE typeof(state) <> 'integer'
UNION ALL SELECT 'stamp', 'commits', number, typeof(stamp), 'text' FROM commits WHERE typeof(stamp) <> 'text'
UNION ALL SELECT 'time', 'commits', number, typeof(time), 'text' FROM commits WHERE typeof(time) <> 'text'
UNION ALL SELECT 'number', 'changes', number, typeof(number), 'integer' FROM changes WHERE typeof(number) <> 'integer'
UNION ALL SELECT 'photo', 'changes', number, typeof(photo), 'integer' FROM changes WHERE typeof(photo) <> 'integer'
UNION ALL SELECT 'code', 'changes', number, typeof(code), 'integer' FROM changes WHERE typeof(code) <> 'integer'
UNION ALL SELECT 'ids_changed', 'meta', key, typeof(value), 'integer' FROM meta WHERE key = 'ids_changed' AND typeof(value) <> 'integer'
UNION ALL SELECT 'name', 'searchers', name, typeof(name), 'text' FROM searchers WHERE typeof(name) <> 'text'
UNION ALL SELECT 'note', 'searchers', name, typeof(note), 'text' FROM searchers WHERE typeof(note) <> 'text'
UNION ALL SELECT 'path', 'removed', id, typeof(path), 'text' FROM removed WHERE typeof(path) <> 'text'
UNION ALL SELECT 'content', 'removed', id, typeof(content), 'blob' FROM removed WHERE typeof(content) <> 'blob'
UNION ALL SELECT 'time', 'removed', id, typeof(time), 'text' FROM removed WHERE typeof(time) <> 'text'
UNION ALL SELECT 'trashed', 'removed', id, typeof(trashed), 'text' FROM removed WHERE typeof(trashed) NOT IN ('text', 'null')
UNION ALL SELECT 'said', 'removed', id, typeof(said), 'text' FROM removed WHERE typeof(said) <> 'text';

-- a row of {} belongs to a row of {} that is not there
SELECT "table", parent FROM pragma_foreign_key_check;

-- {} has a code of {} bytes; index it again
SELECT path, length(code) FROM $codes JOIN photos USING (id) WHERE length(code) <> ($bits + 7) / 8;

-- {} is the wrong number of photos with {!r}
SELECT photos, name FROM labels
WHERE photos <> (SELECT count(*) FROM photo_labels WHERE label = labels.id AND state & 1);
