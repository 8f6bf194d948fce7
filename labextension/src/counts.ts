// So many of a thing: `1 op`, `1,234 ops`.

import { formatCount } from './format';
import { trans } from './texts';

/** Each takes the number with its separators as `%2`: `%1` would be the bare one. */
export const counted = {
  changes: (n: number) => trans._n('%2 change', '%2 changes', n, formatCount(n)),
  drops: (n: number) => trans._n('%2 drop', '%2 drops', n, formatCount(n)),
  modules: (n: number) => trans._n('%2 module', '%2 modules', n, formatCount(n)),
  ops: (n: number) => trans._n('%2 op', '%2 ops', n, formatCount(n)),
  steps: (n: number) => trans._n('%2 step', '%2 steps', n, formatCount(n)),
  storages: (n: number) => trans._n('%2 storage', '%2 storages', n, formatCount(n)),
  swaps: (n: number) => trans._n('%2 swap', '%2 swaps', n, formatCount(n))
};
