-- What others have built on a view.
SELECT DISTINCT CASE WHEN r.oid IS NULL THEN pg_describe_object(d.classid, d.objid, 0)
  ELSE pg_describe_object('pg_class'::regclass, r.ev_class, 0) END AS name
FROM pg_depend d LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
WHERE d.deptype <> 'i' AND r.ev_class IS DISTINCT FROM to_regclass(%(view)s) AND (
  (d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%(view)s))
  OR (d.refclassid = 'pg_type'::regclass AND d.refobjid = to_regtype(%(view)s))
) ORDER BY name
