import { h, show } from './dom.js';
export const title = () => 'pipeline';
export function open(main) { show(main, h('p', {}, 'pipeline')); }
