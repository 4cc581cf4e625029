import sys

from experiments.retrieval.run import main

sys.exit(main())
