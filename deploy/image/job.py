"""What spark-submit starts: `spark-submit job.py run --bootstrap-server …` is `kquota run --bootstrap-server …`."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
