"""What Databricks runs in the Spark session of its cluster, and spark-submit (as `job.py` of the image): `kquota`."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
