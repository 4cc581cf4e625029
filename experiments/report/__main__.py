import sys

from experiments.report.run import main

sys.exit(main())
