import { h, show } from './dom.js';
export const title = () => 'client';
export function open(main) { show(main, h('p', {}, 'client')); }
