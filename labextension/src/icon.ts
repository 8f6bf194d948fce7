// The panel's icon: a stack of residencies, one of them away.

import { LabIcon } from '@jupyterlab/ui-components';

export const icon = new LabIcon({
  name: 'chameleon-lab:icon',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">
<g class="jp-icon3" fill="#616161"><rect x="1" y="11" width="14" height="3" rx="0.5"/><rect x="1" y="6.5" width="4" height="3" rx="0.5"/><rect x="11" y="6.5" width="4" height="3" rx="0.5"/><rect x="5" y="7.500" width="1.500" height="1"/><rect x="7.250" y="7.500" width="1.500" height="1"/><rect x="9.500" y="7.500" width="1.500" height="1"/><rect x="3" y="2" width="8" height="3" rx="0.500"/></g></svg>`
});
