import sys

from experiments.imputation.run import main

sys.exit(main())
