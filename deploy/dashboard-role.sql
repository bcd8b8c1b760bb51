-- The role of dashboards (`evercount serve --read-only`): it reads what the role evercount writes, and writes nothing.
-- The image of PostgreSQL runs this when it makes the database. For a database that is there already:
-- docker compose -f deploy/compose.yaml exec postgres psql -U evercount -f /docker-entrypoint-initdb.d/dashboard-role.sql
\set ON_ERROR_STOP on
\set password `cat /run/secrets/dashboard`
CREATE ROLE dashboard LOGIN PASSWORD :'password';
GRANT SELECT ON ALL TABLES IN SCHEMA public TO dashboard;
ALTER DEFAULT PRIVILEGES FOR ROLE evercount IN SCHEMA public GRANT SELECT ON TABLES TO dashboard;
