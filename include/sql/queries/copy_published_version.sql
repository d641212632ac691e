COPY published_version (id, modified_at) FROM STDIN WITH (FORMAT csv)
