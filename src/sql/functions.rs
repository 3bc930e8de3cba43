//! Which functions of a database may touch the session: the question to the server whose answer
//! [`touches`](super::touches::touches) asks for.

/// Rows of `kind` and `name`, both text, without repeats, for the database that it is run in.
///
/// Of kind `reads` and `draws`: the name of one that may ask for `currval` or `lastval`, or give these something to say;
/// of kind `hidden` and `fires`, what does the one or the other without being called by its name.
///
/// Of kind `function`: the name, without its schema, of a function, procedure or aggregate of a user whose source
/// may touch the session, or mentions the name of another that may; of kind `setting`, what looks like the name of a
/// custom setting in these. Functions in C count only if their symbol
/// says so. Of kind `trigger`, `rule` (a view's query as well), `default`, `constraint`, `policy`, `operator` and
/// `cast`: one that runs such a function, or one of the server's own. Where there are any, a text need not show
/// at all that it touches the session.
///
/// It goes by words in the sources, so it lists too much: comments count, and so do strings. Dynamic SQL can do
/// anything and always counts. An UPDATE's SET, `SET LOCAL` and the variables of `DECLARE` do not.
///
/// Sources of some megabytes take a second or two, and compiling it (`jit`) takes longer than running it: better
/// switched off for it.
///
/// For PostgreSQL 11 and later; qualified, so that no search path changes what it means.
pub const STATEFUL: &str = r#"
WITH RECURSIVE
source AS MATERIALIZED (
    SELECT p.oid, p.proname::text AS name, pg_catalog.lower(p.proname::text) AS folded,
        pg_catalog.lower(CASE
            WHEN p.prokind = 'a' THEN pg_catalog.concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn,
                a.aggserialfn, a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn)
            -- A body that was parsed when the function was made.
            WHEN p.prosrc = '' THEN pg_catalog.regexp_replace(
                pg_catalog.pg_get_functiondef(p.oid), '^.*?\n(BEGIN ATOMIC|\s*RETURN\M)', '\1')
            ELSE p.prosrc
        END) AS body
    FROM pg_catalog.pg_proc p
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    LEFT JOIN pg_catalog.pg_aggregate a ON a.aggfnoid = p.oid
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
),
expression AS MATERIALIZED (
    SELECT 'rule' AS kind, c.relname::text AS name, pg_catalog.lower(pg_catalog.pg_get_ruledef(r.oid)) AS body
    FROM pg_catalog.pg_rewrite r
    JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL
    SELECT 'default', c.relname::text, pg_catalog.lower(pg_catalog.pg_get_expr(d.adbin, d.adrelid))
    FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_class c ON c.oid = d.adrelid
    UNION ALL
    SELECT 'constraint', k.conname::text, pg_catalog.lower(pg_catalog.pg_get_constraintdef(k.oid))
    FROM pg_catalog.pg_constraint k
    JOIN pg_catalog.pg_namespace n ON n.oid = k.connamespace
    WHERE k.contype = 'c' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL
    SELECT 'policy', p.polname::text, pg_catalog.lower(pg_catalog.concat_ws(' ',
        pg_catalog.pg_get_expr(p.polqual, p.polrelid), pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid)))
    FROM pg_catalog.pg_policy p
),
-- Names that are more than a word.
odd AS MATERIALIZED (
    SELECT DISTINCT folded FROM source WHERE folded ~ '\W'
),
-- Which functions of users a source mentions.
mention AS MATERIALIZED (
    SELECT DISTINCT s.oid, s.name, w.word
    FROM source s, pg_catalog.regexp_split_to_table(s.body, '\W+') AS w(word)
    WHERE w.word IN (SELECT folded FROM source)
    UNION
    SELECT s.oid, s.name, odd.folded
    FROM source s
    JOIN odd ON pg_catalog.strpos(s.body, odd.folded) > 0
),
stateful(oid, folded) AS (
    SELECT oid, folded
    FROM source
    WHERE body ~ 'set_config|advisory|pg_temp|pg_settings|currval|lastval|query_to_xml|ts_stat|ts_rewrite|crosstab'
        OR body ~ 'replication_slot|replication_origin_session|\mset_limit\M|\mspi_|\mplpy\M|\mplv8\M|u&"'
        OR body ~ ('\m(reset|prepare|execute|deallocate|discard|listen|unlisten|load|hold|temp|temporary'
            || '|create|drop)\M')
        -- Neither that of UPDATE, unless it is FOR UPDATE and another statement, nor a local one.
        OR pg_catalog.regexp_replace(pg_catalog.regexp_replace(body,
            '(?<!\m(?:for|key)\s+)\mupdate\s+((only\s+)?[\w.$"]+\s+((as\s+)?[\w$"]+\s+)?)?set\M', 'update', 'g'),
            '\mset\s+(local|transaction|constraints)\s+[\w"]', '', 'g') ~ '\mset\M'
    UNION
    SELECT s.oid, s.folded
    FROM stateful
    JOIN mention m ON m.word = stateful.folded
    JOIN source s ON s.oid = m.oid
),
sequential(kind, oid, folded) AS (
    SELECT k.kind, s.oid, s.folded
    FROM source s
    JOIN (VALUES ('reads', 'currval|lastval'), ('draws', '\m(nextval|setval|insert|merge|copy|execute)\M'))
        AS k(kind, pattern) ON s.body ~ k.pattern
    UNION
    SELECT sequential.kind, s.oid, s.folded
    FROM sequential
    JOIN mention m ON m.word = sequential.folded
    JOIN source s ON s.oid = m.oid
)
SELECT 'function' AS kind, s.name
FROM source s WHERE s.oid IN (SELECT oid FROM stateful)
UNION
SELECT q.kind, s.name
FROM sequential q JOIN source s ON s.oid = q.oid
UNION
SELECT 'hidden', e.name
FROM expression e WHERE e.body ~ 'currval|lastval'
UNION
SELECT 'fires', t.tgname::text
FROM pg_catalog.pg_trigger t
WHERE NOT t.tgisinternal AND t.tgfoid IN (SELECT oid FROM sequential WHERE sequential.kind = 'draws')
UNION
SELECT 'setting', coalesce(m.name[1], m.name[2])
FROM source s, pg_catalog.regexp_matches(s.body,
    '''([a-z_][a-z0-9_$]*(?:\.[a-z_][a-z0-9_$]*)+)''|\mset\s+(?:session\s+)?([a-z_][a-z0-9_$]*(?:\.[a-z_][a-z0-9_$]*)+)',
    'g') AS m(name)
WHERE s.oid IN (SELECT oid FROM stateful)
UNION
SELECT 'trigger', t.tgname::text
FROM pg_catalog.pg_trigger t WHERE NOT t.tgisinternal AND t.tgfoid IN (SELECT oid FROM stateful)
UNION
SELECT 'trigger', t.evtname::text
FROM pg_catalog.pg_event_trigger t WHERE t.evtfoid IN (SELECT oid FROM stateful)
UNION
SELECT 'operator', o.oprname::text
FROM pg_catalog.pg_operator o WHERE o.oprcode::pg_catalog.oid IN (SELECT oid FROM stateful)
UNION
SELECT 'cast', pg_catalog.format_type(c.casttarget, NULL)
FROM pg_catalog.pg_cast c WHERE c.castfunc IN (SELECT oid FROM stateful)
UNION
SELECT e.kind, e.name
FROM expression e
WHERE e.body ~ 'set_config|advisory|currval|lastval|query_to_xml|ts_stat|ts_rewrite|crosstab|replication_slot'
    OR e.body ~ '\mupdate\s+(only\s+)?(pg_catalog\.)?pg_settings\M'
    OR EXISTS (
        SELECT FROM odd
        WHERE folded IN (SELECT folded FROM stateful) AND pg_catalog.strpos(e.body, folded) > 0
    )
    OR EXISTS (
        SELECT FROM pg_catalog.regexp_split_to_table(e.body, '\W+') AS w(word)
        WHERE w.word IN (SELECT folded FROM stateful)
    )
ORDER BY 1, 2"#;
