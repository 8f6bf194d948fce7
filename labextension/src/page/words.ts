// The enums of a trace in words, in the order of their numbers: chameleon_lab/trace/columns.py.

export const STAGES = ['forward', 'backward', 'optimizer', 'no_grad'] as const;
export const CAUSES = ['planned', 'evict', 'demand', 'access'] as const;
export const WAYS = ['out', 'in'] as const;
/** Parts of a stall. */
export const PARTS = ['copy', 'queue', 'room', 'late', 'other'] as const;
