import sys

from experiments.update_rules.run import main

sys.exit(main())
