// Numbers as people read them; the same as chameleon_lab/util/units.py writes them.

const BYTES: [string, number][] = [
  ['GiB', 1024 ** 3],
  ['MiB', 1024 ** 2],
  ['KiB', 1024]
];
const SECONDS: [string, number][] = [
  ['s', 1],
  ['ms', 1e-3],
  ['µs', 1e-6]
];

/** What stands for a figure that nobody has measured, or that means nothing. */
export const NOTHING = '–';

export function orNothing<T>(value: T | null | undefined, format: (value: T) => string): string {
  return value === null || value === undefined ? NOTHING : format(value);
}

/** Three significant digits, without an exponent. */
function three(value: number): string {
  const magnitude = Math.abs(value);
  const digits = magnitude === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(magnitude)));
  return value.toFixed(Math.min(digits, 6)).replace('-', '−');
}

export function formatBytes(size: number): string {
  for (const [unit, scale] of BYTES) {
    if (Math.abs(size) >= scale * 0.9995) {
      return `${three(size / scale)} ${unit}`;
    }
  }
  return `${Math.round(size)} B`;
}

export function formatSeconds(seconds: number): string {
  if (seconds === 0) {
    return '0';
  }
  const [unit, scale] = SECONDS.find(([, s]) => Math.abs(seconds) >= s) ?? SECONDS[2];
  return `${three(seconds / scale)} ${unit}`;
}

export function formatPercent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

export function formatCount(count: number): string {
  return count.toLocaleString('en');
}
