-- The tables of the site's API, apart from those of the pipelines: members and boards as the API last saved them, and
-- the keys of its callers. include.gateway.calls.rows serves them. They are made in the database of pipeline board_detail.

CREATE SCHEMA site;
COMMENT ON SCHEMA site IS 'System of record: what the site''s API last saved.';
GRANT USAGE ON SCHEMA site TO gateway, batch;

CREATE SEQUENCE site.member_id_seq;
CREATE SEQUENCE site.board_id_seq;
GRANT USAGE ON SEQUENCE site.member_id_seq, site.board_id_seq TO gateway;

CREATE TABLE site.member (
    id bigint NOT NULL DEFAULT nextval('site.member_id_seq'),
    nickname text NOT NULL,
    city text,
    phone text,
    email text,
    created_at timestamptz NOT NULL,
    modified_at timestamptz NOT NULL,
    deleted_at timestamptz,
    PRIMARY KEY (id)
);
GRANT SELECT, INSERT, UPDATE ON site.member TO gateway;
COMMENT ON TABLE site.member IS 'System of record: members as the API last saved them.';

CREATE TABLE site.board_document (
    id bigint NOT NULL DEFAULT nextval('site.board_id_seq'),
    document jsonb NOT NULL,
    modified_at timestamptz NOT NULL,
    deleted_at timestamptz,
    PRIMARY KEY (id)
);
CREATE INDEX board_document_created ON site.board_document (((document ->> 'createdAt')) COLLATE "C");
CREATE INDEX board_document_member ON site.board_document (((document ->> 'memberId')));
GRANT SELECT ON site.board_document TO batch;
GRANT SELECT, INSERT, UPDATE ON site.board_document TO gateway;
COMMENT ON TABLE site.board_document IS 'System of record: boards as documents, as the API last saved them.';

CREATE TABLE site.change_key (
    scope text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    topic text NOT NULL,
    row_id bigint,
    created_at timestamptz,
    modified_at timestamptz,
    value jsonb,
    made_at timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX change_key_made_at ON site.change_key (made_at);
CREATE INDEX change_key_row ON site.change_key (topic, row_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON site.change_key TO gateway;
COMMENT ON TABLE site.change_key IS 'Idempotency-Key of each change, saved with its row; forgotten after the window.';
COMMENT ON COLUMN site.change_key.scope IS 'Whose key it is: the name of the token.';
COMMENT ON COLUMN site.change_key.fingerprint IS 'SHA-256 of method, path and body: another call may not use the key.';
COMMENT ON COLUMN site.change_key.value IS
    'The value as its record carries it, so that a retry produces the same one; null for a deletion.';

CREATE OR REPLACE VIEW recorded AS
SELECT id AS board_id, (document ->> 'createdAt') COLLATE "C" AS recorded_at
  FROM site.board_document
 WHERE deleted_at IS NULL;
