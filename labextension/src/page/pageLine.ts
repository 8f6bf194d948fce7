// A line to the data in the page: it answers what a kernel would, without one.

import type { IChannel } from '../client';
import { type IMethods, type IRequest, LabError, type Method, VERSION } from '../protocol';
import {
  aliveAt,
  boxIn,
  locateIn,
  pointAt,
  rangeOf,
  searchFor,
  seekFrom,
  storageAt
} from './answers';
import type { IPacked, StepData } from './pageData';
import { PageScene } from './pageScene';
import { viewOf } from './view';

interface IReply {
  result: object;
  buffers?: Uint8Array[];
}

type OfScenes = {
  [M in Method]?: (scene: PageScene, params: IMethods[M][0]) => IReply;
};

const OF_SCENES: OfScenes = {
  scene: scene => ({ result: scene.data.packed.scene }),
  view: (scene, p) => viewOf(scene, p),
  point: (scene, p) => ({ result: pointAt(scene, p.axis, p.track, p.row) }),
  storage: (scene, p) => ({ result: storageAt(scene, p.axis, p.uid) }),
  alive: (scene, p) => ({ result: aliveAt(scene, p.axis, p.at) }),
  range: (scene, p) => ({ result: rangeOf(scene, p.axis, p.start, p.end) }),
  seek: (scene, p) => ({ result: seekFrom(scene, p) }),
  search: (scene, p) => ({ result: searchFor(scene, p.axis, p.query) }),
  locate: (scene, p) => ({ result: locateIn(scene, p.storage) }),
  box: (scene, p) => ({ result: boxIn(scene, p) }),
  notes: () => ({ result: { notes: [] } })
};

export class PageLine implements IChannel {
  constructor(
    private readonly _packed: IPacked,
    steps: StepData[]
  ) {
    for (const step of steps) {
      this._scenes.set(step.packed.index, new PageScene(step));
    }
  }

  onMessage: IChannel['onMessage'] = () => undefined;
  onClose: IChannel['onClose'] = () => undefined;

  send({ id, method, params }: IRequest): void {
    // Not at once: who asks has not noted yet that an answer is waited for.
    setTimeout(() => {
      try {
        const { result, buffers } = this.answer(method, params);
        this.onMessage({ version: VERSION, type: 'reply', id, result }, buffers ?? []);
      } catch (error) {
        const { code, message, hint } =
          error instanceof LabError ? error : new LabError('internal', String(error));
        const told = { code, message, hint };
        this.onMessage({ version: VERSION, type: 'error', id, error: told }, []);
      }
    });
  }

  close(): void {}

  /** What a kernel would answer; throws a LabError where the page cannot. */
  answer(method: Method, params: object): IReply {
    if (method === 'hello') {
      return { result: { subshell: false } };
    }
    if (method === 'status') {
      return { result: this._packed.status };
    }
    if (method === 'growth') {
      return { result: this._packed.growth };
    }
    const work = OF_SCENES[method] as ((scene: PageScene, params: object) => IReply) | undefined;
    if (!work) {
      throw new LabError(
        'not_now',
        'This is a page without a kernel.',
        'Open the trace in JupyterLab.'
      );
    }
    const { first, last } = params as { first: number; last: number };
    const scene = first === last ? this._scenes.get(first) : undefined;
    if (!scene) {
      throw new LabError('gone', `The page has no steps ${first} to ${last}.`, 'Choose one step.');
    }
    return work(scene, params);
  }

  private readonly _scenes = new Map<number, PageScene>();
}
