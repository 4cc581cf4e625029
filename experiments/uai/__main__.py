import sys

from experiments.uai.run import main

sys.exit(main())
