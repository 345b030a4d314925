import { h, show } from './dom.js';
export const title = () => 'quotas';
export function open(main) { show(main, h('p', {}, 'quotas')); }
