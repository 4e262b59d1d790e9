DROP TABLE queen_partitions;
