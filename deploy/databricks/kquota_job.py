"""What the continuous job runs: `kquota_job.py run …` is `kquota run …`, in the Spark session of the cluster."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
