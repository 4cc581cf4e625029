import sys

from experiments.words.run import main

sys.exit(main())
