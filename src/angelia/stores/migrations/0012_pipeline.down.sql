DROP TABLE pipeline_runs;
