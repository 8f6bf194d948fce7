// What a page holds of a trace: columns as chameleon_lab/lab/page/columns.py packs them.

import type { IGrowth, IScene, IStatus } from '../protocol';
import type { Column } from './lod';

type Dtype = 'float64' | 'float32' | 'int32' | 'uint8';

export interface IPackedStep {
  index: number;
  scene: IScene;
  map_bytes: { storage: number; packed: number };
  /** Dtype, first byte and count of each column. */
  columns: Record<string, [Dtype, number, number]>;
  strings: Record<string, string[]>;
}

export interface IPacked {
  version: number;
  status: IStatus;
  growth: IGrowth;
  steps: IPackedStep[];
}

/** Version of what is packed. The page's code and its data are written together. */
export const PACKED_VERSION = 1;

const ARRAYS = {
  float64: Float64Array,
  float32: Float32Array,
  int32: Int32Array,
  uint8: Uint8Array
};

/** A step's columns, by their names. */
export class StepData {
  constructor(
    readonly packed: IPackedStep,
    private readonly _bytes: ArrayBuffer
  ) {}

  column(name: string): Column {
    const [dtype, first, count] = this.packed.columns[name];
    return new ARRAYS[dtype](this._bytes, first, count);
  }

  strings(name: string): string[] {
    return this.packed.strings[name];
  }
}

/** Read what the page holds: base64 of what gzip made of a header's length, the header and the columns. */
export async function readPacked(text: string): Promise<{ packed: IPacked; steps: StepData[] }> {
  const coded = Uint8Array.from(atob(text.trim()), letter => letter.charCodeAt(0));
  const stream = new Blob([coded]).stream().pipeThrough(new DecompressionStream('gzip'));
  const bytes = await new Response(stream).arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const header = new TextDecoder().decode(new Uint8Array(bytes, 8, length));
  const packed = JSON.parse(header) as IPacked;
  if (packed.version !== PACKED_VERSION) {
    throw new Error(`The page holds data of version ${packed.version}: write it again.`);
  }
  const columns = bytes.slice(8 + length); // their first byte is aligned
  return { packed, steps: packed.steps.map(step => new StepData(step, columns)) };
}
